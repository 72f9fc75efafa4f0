"""Counts the packets of a record, and those of which scapy computes another checksum than they have."""
import sys

from scapy.all import UDP, bind_layers, rdpcap
from scapy.contrib.roce import BTH

record, port = sys.argv[1], int(sys.argv[2])
bind_layers(UDP, BTH, dport=port)
count = wrong = 0
for packet in rdpcap(record):
    data = bytes(packet[UDP].payload)
    count += 1
    wrong += packet[BTH].compute_icrc(data) != data[-4:]
print(f"{count} packets, {wrong} wrong")
