"""Answers on their way into a room: the room, the encryption gate, streaming, files, receipts."""
