{{- define "postrider.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters: the pods of a StatefulSet and other objects add a suffix to it. */}}
{{- define "postrider.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* Labels that never change within a release: the selector of a Deployment is immutable. */}}
{{- define "postrider.selectorLabels" -}}
app.kubernetes.io/name: {{ include "postrider.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The pods of the relay, without those of the schema Job and the test. */}}
{{- define "postrider.relayLabels" -}}
{{- if and (eq .Values.workload.kind "None") .Values.sidecar.podLabels -}}
{{ toYaml .Values.sidecar.podLabels }}
{{- else -}}
{{ include "postrider.selectorLabels" . }}
app.kubernetes.io/component: relay
{{- end -}}
{{- end }}

{{/* Whether there are such pods: the chart's own, or those of an application that set sidecar.podLabels. */}}
{{- define "postrider.knowsPods" -}}
{{- if or (ne .Values.workload.kind "None") .Values.sidecar.podLabels }}yes{{ end -}}
{{- end }}

{{- define "postrider.labels" -}}
{{- $own := include "postrider.selectorLabels" . | fromYaml -}}
{{- $about := dict
    "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
    "app.kubernetes.io/version" .Chart.AppVersion
    "app.kubernetes.io/managed-by" .Release.Service -}}
{{ mergeOverwrite (deepCopy .Values.commonLabels) $about $own | toYaml }}
{{- end }}

{{- define "postrider.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "postrider.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{- define "postrider.image" -}}
{{- $image := .Values.image -}}
{{- if not $image.repository -}}
{{- fail "image.repository is empty; name the image in your registry, for example registry.example/postrider (no public registry has it)" -}}
{{- end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end }}

{{/* A text of files/ with the runbook's address of the values. {text, root} */}}
{{- define "postrider.withRunbook" -}}
{{- .text | replace "https://github.com/postrider/postrider/blob/main/docs/monitoring.md" .root.Values.runbookUrl -}}
{{- end }}
