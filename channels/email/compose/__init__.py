"""An answer as a mail: MIME message and HTML part."""
