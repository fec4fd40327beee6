"""A mail as text: MIME, HTML, quotes, addresses, reports of delivery. Pure."""
