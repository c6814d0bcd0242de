"""Speed of our own code against plain scripts. Ratios come from interleaved runs: machines are noisy."""
