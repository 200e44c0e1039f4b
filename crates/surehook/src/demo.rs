//! A push on a fresh repository, followed to the finished build, told as a timeline.
