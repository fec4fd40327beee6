"""What an operator may ask of a gateway, by the control socket or offline."""
