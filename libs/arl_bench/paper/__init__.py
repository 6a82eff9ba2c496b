"""The paper's comparison: simulated, on the control plane, on real cores."""
