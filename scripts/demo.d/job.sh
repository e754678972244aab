#!/bin/bash
#SBATCH --job-name=train
#SBATCH --ntasks-per-node=1
#SBATCH --time=10
# An ordinary job script: one task on each node, srun starts them.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
GLOO_SOCKET_IFNAME=eth0
export MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME
srun python train.py --fault index-error --fault-rank 2 --fault-step 50
