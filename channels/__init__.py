"""
The channels: one package for each place where people talk, such as Matrix and email. They never import the
gateway.
"""
