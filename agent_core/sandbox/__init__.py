"""Running programs of others so that they can do nothing but what they were given."""
