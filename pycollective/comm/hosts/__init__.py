"""The backend of ranks on several hosts."""
