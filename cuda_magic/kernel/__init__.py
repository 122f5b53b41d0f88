"""The kernel process itself: restart in place, the control channel, what IPython holds."""
