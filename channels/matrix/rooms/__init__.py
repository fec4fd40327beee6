"""What is known about rooms: members, invitations, upgrades, direct rooms, backfill."""
