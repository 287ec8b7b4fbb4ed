"""Problems of reasoning-gym: their labels, and the processes in which they are made and scored."""
