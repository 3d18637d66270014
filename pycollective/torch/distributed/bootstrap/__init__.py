"""How the ranks of a process group find each other and connect."""
