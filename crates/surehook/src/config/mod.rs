//! Settings: defaults, the configuration file, the environment. The only place that reads the environment.
