"""What `horovod.common` was, as far as scripts import it."""
