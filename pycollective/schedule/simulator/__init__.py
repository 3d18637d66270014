"""What a program costs on a network."""
