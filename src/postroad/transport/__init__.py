"""Roads between Apps: what a transport promises, the topology on a broker, and AMQP 0-9-1."""
