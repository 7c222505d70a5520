"""`cenote top`: what the processes of this machine hold now."""
