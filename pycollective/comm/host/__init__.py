"""The backend of ranks that share memory: processes of one host, or threads of one process."""
