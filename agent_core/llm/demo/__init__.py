"""The demo model: it needs no network, so that everything else can be tried and tested."""
