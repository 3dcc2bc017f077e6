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

variable "resource_group" {
  description = "Name of the resource group."
  type        = string
}

variable "location" {
  description = "Location of Azure, such as eastus."
  type        = string
}

variable "subnet_id" {
  description = "Subnet of the machine. It needs a way out, through a NAT gateway."
  type        = string
}

variable "vm_size" {
  description = "Size of the machine."
  type        = string
  default     = "Standard_NC8as_T4_v3"
}

variable "ssh_public_key" {
  description = "Public key of the administrator's account, which Azure wants. The firewall opens no port for it."
  type        = string
}

variable "image" {
  description = "Image of Debian 12 or newer; with the driver of NVIDIA for machines with GPUs."
  type        = object({ publisher = string, offer = string, sku = string })
  default     = { publisher = "Debian", offer = "debian-12", sku = "12-gen2" }
}
