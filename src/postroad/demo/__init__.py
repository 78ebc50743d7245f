"""The flights example: two services, a broker, real data, and the faults that `postroad demo --chaos` deals out."""
