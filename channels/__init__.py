"""The part that carries: one package per place where people talk. It never imports the gateway."""
