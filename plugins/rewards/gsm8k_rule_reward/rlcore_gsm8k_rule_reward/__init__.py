"""The rule reward for GSM8K."""
