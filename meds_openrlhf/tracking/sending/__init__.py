"""Sends a run's metrics to TensorBoard, Weights & Biases, SwanLab and MLflow, from outside the training.

follower_process   in the driver or `meds track`: starts the process, and starts it again; passes its lines on
follower           the process: a sender per tracker, and what the user is told
sender             a thread: sessions, one after the other, and whether there is trouble
*_session          one session with a tracker: new lines in, until it is closed; destinations has their names
run_lines          what is new in the run's files; tracking_state: what W&B and MLflow have confirmed of it
"""
