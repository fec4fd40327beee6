"""The receiving loop: /sync, timelines, decryption, reply context, downloads."""
