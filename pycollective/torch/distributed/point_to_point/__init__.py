"""send and recv of a process group: messages with tags, and their announcements to the receivers."""
