"""From a YAML file to a validated manifest, with the position of every value."""
