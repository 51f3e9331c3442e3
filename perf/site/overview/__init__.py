"""Overview page: measured classes, open regressions and newest gates of each machine."""
