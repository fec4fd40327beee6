"""The mailbox by IMAP: protocol, connections, positions, folders."""
