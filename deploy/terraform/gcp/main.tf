# One agent on one machine of Google Cloud.

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.20, < 8.0"
    }
  }
}

# A network of Google Cloud lets everything out and nothing in unless a rule says otherwise.
resource "google_compute_firewall" "peers" {
  count         = length(var.peer_cidrs) > 0 ? 1 : 0
  name          = "${var.name}-peers"
  network       = var.network
  direction     = "INGRESS"
  source_ranges = var.peer_cidrs
  target_tags   = [var.name]

  allow {
    protocol = "tcp"
    ports    = ["7072"]
  }
}

resource "google_compute_firewall" "deny" {
  name          = "${var.name}-deny"
  network       = var.network
  direction     = "INGRESS"
  priority      = 60000
  source_ranges = ["0.0.0.0/0"]
  target_tags   = [var.name]

  deny {
    protocol = "all"
  }
}

resource "google_compute_disk" "data" {
  name = "${var.name}-data"
  zone = var.zone
  type = "pd-balanced"
  size = var.disk_gib
}

resource "google_compute_instance" "this" {
  name         = var.name
  zone         = var.zone
  machine_type = var.machine_type
  tags         = [var.name]

  metadata = {
    user-data = templatefile("${path.module}/../cloud-init.yaml.tftpl", {
      cloud       = "gcp"
      region      = var.region_name
      coordinator = var.coordinator
      advertise   = var.advertise
      join_token  = var.join_token
      repository  = var.repository
      revision    = var.revision
      spot        = var.spot
      disk        = "/dev/disk/by-id/google-periplus"
    })
  }

  boot_disk {
    initialize_params {
      image = var.image
      size  = 60
    }
  }

  attached_disk {
    source      = google_compute_disk.data.id
    device_name = "periplus"
  }

  network_interface {
    subnetwork = var.subnetwork
  }

  scheduling {
    provisioning_model          = var.spot ? "SPOT" : "STANDARD"
    preemptible                 = var.spot
    automatic_restart           = !var.spot
    on_host_maintenance         = "TERMINATE"
    instance_termination_action = var.spot ? "STOP" : null
  }
}

output "private_address" {
  description = "Private address of the machine."
  value       = google_compute_instance.this.network_interface[0].network_ip
}
