"""What every command needs of the machine it runs on: signals, Ray, GPUs, the hub, child processes."""
