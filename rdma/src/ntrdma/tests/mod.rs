mod connections;
mod frames;
mod hostile;
mod life;
mod verbs;
