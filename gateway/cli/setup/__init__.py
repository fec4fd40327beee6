"""
`squidbot init`: sets squidbot up, from nothing to a configuration that is proved to work. Everything is asked
and tried first (`wizard`), then written at once (`config_writer`), and only then something is installed and
sent, which may fail without taking anything back. Whatever breaks it off before that leaves no trace.
"""
