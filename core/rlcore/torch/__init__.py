"""What torch plugins share: packed forward, log-probs, losses, optimizer, weights. Needs the extra rlcore[torch]."""
