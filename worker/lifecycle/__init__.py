"""Starting, running and stopping the process."""
