"""A model without a network, so that everything else can be tried and tested."""
