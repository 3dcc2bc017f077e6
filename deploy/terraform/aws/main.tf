# One agent on one machine of AWS.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.40, < 7.0"
    }
  }
}

data "aws_subnet" "this" {
  id = var.subnet_id
}

resource "aws_security_group" "this" {
  name_prefix = "${var.name}-"
  description = "Lets the agent dial out; other regions may dial in if peer_cidrs says so."
  vpc_id      = data.aws_subnet.this.vpc_id
}

resource "aws_vpc_security_group_egress_rule" "all" {
  security_group_id = aws_security_group.this.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

resource "aws_vpc_security_group_ingress_rule" "peers" {
  for_each          = toset(var.peer_cidrs)
  security_group_id = aws_security_group.this.id
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 7072
  to_port           = 7072
}

resource "aws_ebs_volume" "data" {
  availability_zone = data.aws_subnet.this.availability_zone
  size              = var.disk_gib
  type              = "gp3"
  encrypted         = true
  tags              = { Name = var.name }
}

resource "aws_instance" "this" {
  ami                         = var.ami
  instance_type               = var.instance_type
  subnet_id                   = var.subnet_id
  vpc_security_group_ids      = [aws_security_group.this.id]
  user_data_replace_on_change = true
  user_data = templatefile("${path.module}/../cloud-init.yaml.tftpl", {
    cloud       = "aws"
    region      = var.region_name
    coordinator = var.coordinator
    advertise   = var.advertise
    join_token  = var.join_token
    repository  = var.repository
    revision    = var.revision
    spot        = var.spot
    disk        = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_${replace(aws_ebs_volume.data.id, "-", "")}"
  })
  tags = { Name = var.name }

  metadata_options {
    http_tokens = "required"
  }

  root_block_device {
    volume_size = 60
    volume_type = "gp3"
    encrypted   = true
  }

  dynamic "instance_market_options" {
    for_each = var.spot ? [1] : []
    content {
      market_type = "spot"
    }
  }
}

resource "aws_volume_attachment" "data" {
  device_name = "/dev/sdf"
  volume_id   = aws_ebs_volume.data.id
  instance_id = aws_instance.this.id
}

output "private_address" {
  description = "Private address of the machine."
  value       = aws_instance.this.private_ip
}
