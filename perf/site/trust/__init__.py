"""Trust page: error rates of the gate and of the Changes page."""
