variable "name" {
  description = "Name of the machine and of what belongs to it."
  type        = string
  default     = "periplus-agent"
}

variable "region_name" {
  description = "Name of the region in the fleet, such as aws:us-east-1."
  type        = string
}

variable "coordinator" {
  description = "HOST:PORT of the coordinator, which the agent dials."
  type        = string
}

variable "advertise" {
  description = "HOST:PORT at which other regions reach the agent."
  type        = string
}

variable "join_token" {
  description = "Join token that the coordinator made for this region. It lies in the state of Terraform and in the user data of the machine."
  type        = string
  sensitive   = true
}

variable "repository" {
  description = "URL from which git clones Periplus."
  type        = string
}

variable "revision" {
  description = "Tag or commit of Periplus."
  type        = string
}

variable "spot" {
  description = "Whether to rent a spot machine. Its agent stops in time when the cloud announces that it takes the machine away."
  type        = bool
  default     = true
}

variable "disk_gib" {
  description = "GiB of the data disk, which outlives the machine and holds runs, the spool and the agent's identity."
  type        = number
  default     = 200
}

variable "peer_cidrs" {
  description = "Networks of other regions that may dial the agent at port 7072. Empty: the firewall only lets out."
  type        = list(string)
  default     = []
}

variable "zone" {
  description = "Zone of the machine, such as us-central1-a."
  type        = string
}

variable "subnetwork" {
  description = "Self link of the subnetwork. It needs a way out, through Cloud NAT."
  type        = string
}

variable "network" {
  description = "Self link of the network, for the firewall."
  type        = string
}

variable "machine_type" {
  description = "Type of the machine; those of the series g2 and a2 have GPUs of their own."
  type        = string
  default     = "g2-standard-8"
}

variable "image" {
  description = "Image of Debian 12 or newer; with the driver of NVIDIA for machines with GPUs."
  type        = string
  default     = "projects/debian-cloud/global/images/family/debian-12"
}
