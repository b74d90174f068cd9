"""``remat diff``: what differs between two plans."""
