"""Functions of peers: scripts that run in a peer's own environment, or modules of this one."""
