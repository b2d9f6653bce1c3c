"""Takes lines from files, standard input and syslog to topics, and loses none while brokers are away."""
