"""Recording of actions and plots for `tangram simulate`."""
