"""The Hugging Face rollout engine."""
