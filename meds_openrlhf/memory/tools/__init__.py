"""What `meds memory` does with a memory on the disk: look at it, check it, replay it, take it elsewhere, tidy it up."""
