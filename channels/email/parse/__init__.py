"""Parses mails into text: MIME, HTML, quotes, addresses, delivery reports. Pure."""
