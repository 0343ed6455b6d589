"""Starting islands: on this machine, or under a scheduler. No torch here."""
