"""What a plugin is: kinds, hooks, interfaces, discovery."""
